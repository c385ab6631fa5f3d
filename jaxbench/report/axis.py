"""An axis of a chart: where values are, and which of them have ticks."""

import itertools
import math
from collections.abc import Sequence

_TICK_ROOM = 30


class Axis:
    """Maps values to places from `start` to `end` in the drawing, and says where to put ticks.

    `from_zero` begins at 0 if no value is below; `own_ticks` has the values themselves as ticks,
    where they allow it. Values on a logarithmic axis must be positive.
    """

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        from_zero: bool = False,
        own_ticks: bool = False,
    ):
        self._start, self._end, self._log = start, end, log
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            # A quarter of a decade at least.
            pad = max(0.04 * (high - low), 0.02, 0.15 - (high - low) / 2)
        elif from_zero and low >= 0:
            low, high, pad = 0.0, high * 1.05 or 1.0, 0.0
        else:
            pad = 0.05 * (high - low) or abs(low) * 0.05 or 1.0
        self._low, self._high = low - pad, high + pad
        self.ticks = (own_ticks and self._own_ticks(values)) or self._round_ticks()

    def __call__(self, value: float) -> float:
        position = math.log10(value) if self._log else value
        share = (position - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _own_ticks(self, values: Sequence[float]) -> list[float]:
        """Whole numbers, where they are few and far between, are the ticks: batches, devices."""
        distinct = sorted(set(values))
        if len(distinct) > 12 or any(value % 1 for value in distinct):
            return []
        places = map(self, distinct)
        room = [abs(after - place) for place, after in itertools.pairwise(places)]
        return distinct if min(room, default=math.inf) >= _TICK_ROOM else []

    def _round_ticks(self) -> list[float]:
        if not self._log:
            # As many as have room: beside one another they need more than one above the other.
            room = 64 if self._end > self._start else 40
            most = max(1.0, min(6.0, abs(self._end - self._start) / room))
            return _multiples(self._low, self._high, most)
        decades = self._high - self._low
        factors = (1, 2, 5) if decades < 2 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        powers = powers[:: max(1, math.ceil(decades / 6))]
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]
        # Within less than a decade equal steps say more.
        return ticks if len(ticks) > 2 else _multiples(10.0**self._low, 10.0**self._high, 4)

    def name(self, tick: float) -> str:
        """Return a tick's number: as many decimals as its neighbours need, no more."""
        if tick == 0:
            return "0"
        if abs(tick) >= 1e6 or abs(tick) < 1e-3:
            power = math.floor(math.log10(abs(tick)))
            for size, letter in ((12, "T"), (9, "G"), (6, "M")):
                if size <= power < size + 3:
                    return f"{tick / 10.0**size:g}{letter}"
            return f"{tick:.0e}".replace("e-0", "e-").replace("e+0", "e")
        if len(self.ticks) > 1 and self.ticks[0] + self.ticks[-1] != 0:
            return f"{tick:,.6g}" if abs(tick) < 1000 else f"{tick:,.0f}"
        return f"{tick:g}"


def _multiples(low: float, high: float, most: float) -> list[float]:
    """Return the multiples of a round step from low to high, about `most` of them."""
    step = (high - low) / most
    power = 10.0 ** math.floor(math.log10(step))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= step * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
