"""Windows: many calls timed together between two barriers.

A window ends when everything that its calls compute is ready. Windows are thrown away as warm-up
until they agree. What is compared takes turns, so that drift hits all alike.

Everywhere in this package `rounds` is the number of windows of each measurement, `window_s` how
long a window should take, and `show` gets what is done next.
"""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxbench.analysis.rate import Estimate, estimate
from jaxbench.clock import Stopwatch
from jaxbench.errors import BadInput
from jaxbench.parallel.processes import broadcast_value

# Throughput is stable when this many windows in a row are within this share of one another.
_AGREEING, _AGREEMENT = 3, 0.02
_MAX_WARMUP_WINDOWS = 6
_LONGEST_WINDOW_S = 3600.0


def check_window_s(window_s: float) -> None:
    """Raise BadInput for a window that does not end."""
    if not 0 < window_s <= _LONGEST_WINDOW_S:  # written so that nan fails it too
        raise BadInput(f"--window_s={window_s}: must be seconds, at most {_LONGEST_WINDOW_S:g}")


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """The outcome of a warm-up."""

    calls_per_window: int
    calls: int  # that were thrown away
    settled: bool  # whether the last windows agreed


def warm_up(time_calls: Callable[[int], float], window_s: float, rounds: int) -> WarmUp:
    """Run windows until they agree, fewer than `rounds`.

    `time_calls` makes a number of calls and returns the seconds that they took.
    """
    most = min(_MAX_WARMUP_WINDOWS, rounds - 1)
    calls, total, rates, settled = 1, 0, [], False
    while not settled and len(rates) < most:
        elapsed_s = time_calls(calls)
        total += calls
        if elapsed_s < window_s / 2:  # too short to be a window
            calls = math.ceil(min(10 * calls, window_s / elapsed_s * calls))
        else:
            rates.append(calls / elapsed_s)
            last = rates[-_AGREEING:]
            settled = len(last) == _AGREEING and max(last) <= (1 + _AGREEMENT) * min(last)
    return WarmUp(calls, total, settled)


def measuring_s(call_s: float, window_s: float, rounds: int) -> float:
    """Return about how long the warm-up and the windows take of calls that take so long."""
    return (min(_MAX_WARMUP_WINDOWS, rounds - 1) + rounds) * max(call_s, window_s)


class Interleaved(abc.ABC):
    """Something that is measured in windows, in turn with others; its name is for messages."""

    def __init__(self, name: str, window_s: float):
        self.name, self._window_s = name, window_s
        self.warmup: WarmUp | None = None
        self.windows_s: list[float] = []

    @property
    def calls_per_window(self) -> int:
        return self.warmup.calls_per_window if self.warmup else 1

    @abc.abstractmethod
    def run(self, calls: int) -> None:
        """Make this many calls; return once everything that they compute is ready."""

    def around_window(self) -> contextlib.AbstractContextManager:
        """Return the context that each window runs in; entering and leaving it is not timed."""
        return contextlib.nullcontext()

    def warm_up(self, rounds: int) -> None:
        """Run windows until they agree, which fixes how many calls a window holds."""

        def time_window(calls: int) -> float:
            with self.around_window():
                elapsed_s = self.time_calls(calls)
            # In every process windows must hold as many calls, or they would wait for one another.
            return broadcast_value(elapsed_s)

        self.warmup = warm_up(time_window, self._window_s, rounds)

    def measure(self) -> None:
        """Time one window; the caller has entered `around_window()`."""
        self.windows_s.append(self.time_calls(self.calls_per_window))

    def time_calls(self, calls: int) -> float:
        """Return the seconds that some calls take."""
        watch = Stopwatch()
        self.run(calls)
        return watch.elapsed_s()


def unsettled_warnings(warmups: Mapping[str, WarmUp | None]) -> list[str]:
    """Return the warning about windows that never agreed, from {stage: its warm-up so far}."""
    named = [f"{name} ({one.calls})" for name, one in warmups.items() if one and not one.settled]
    text = "throughput did not stabilise during warm-up, in (steps): "
    return [text + ", ".join(named)] if named else []


class Calls(Interleaved):
    """Calls of one compiled function on all devices; a window queues them and waits for the last.

    `call` queues one call and returns its result.
    """

    def __init__(
        self, name: str, call: Callable[[], Any], devices: Sequence[jax.Device], window_s: float
    ):
        super().__init__(name, window_s)
        self._call = call
        # Simulated devices share a pool of threads, in which collectives queued one after the other
        # wait for one another for ever (seen with 4 devices on 2 cores); and one CPU device runs
        # calls that are independent at the same time.
        self._one_by_one = devices[0].platform == "cpu"

    def run(self, calls: int) -> None:
        for _ in range(calls):
            result = self._call()
            if self._one_by_one:
                jax.block_until_ready(result)
        jax.block_until_ready(result)

    def call_s(self) -> Estimate:
        """Return the median seconds of a call."""
        return estimate([window_s / self.calls_per_window for window_s in self.windows_s])

    def per_s(self, amount: float) -> Estimate:
        """Return the rate of a call's bytes or operations, `amount` of them a call."""
        return self.call_s().map(lambda time_s: amount / time_s)


def measure_in_turn(
    turns: Sequence[Interleaved],
    rounds: int,
    show: Callable[[str], object] = lambda activity: None,
    end_round: Callable[[int], object] = lambda number: None,
) -> None:
    """Warm up what is cold, then take `rounds` windows of each: forwards, then backwards."""
    for turn in turns:
        if not turn.warmup:
            show(f"{turn.name}, warm-up")
            turn.warm_up(rounds)
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else turns[::-1]:
            show(f"{turn.name}, window {number + 1} of {rounds}")
            with turn.around_window():
                turn.measure()
        end_round(number + 1)
