"""A sweep on a terminal: a table of its trials, drawn again while they run."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxbench.clock import rough_duration
from jaxbench.metrics import plain
from jaxbench.schema import TrialResult
from jaxbench.sweeps.grid import Trial
from jaxbench.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# Lines that a table needs beside its rows: title, titles of the columns, rule.
_OTHER_LINES = 5
# Running trials whose last line of output is shown.
_MOST_OUTPUTS = 4


class LiveTable:
    """The trials with their status, time and images/s.

    Args:
      running: {key: a running trial's `watch`, and the last `line` that it has printed}.

    Attributes:
      left: how long the other trials will take, in words.
    """

    def __init__(
        self,
        trials: Mapping[str, Trial],
        running: Mapping[str, Any],
        find_result: Callable[[str], TrialResult | None],
    ):
        self._trials, self._running, self._result = trials, running, find_result
        self.left = ""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        keys, running = [*self._trials], dict(self._running)
        done = sum(key not in running and self._result(key) is not None for key in keys)
        yield Text(", ".join(filter(None, [f"{done} of {len(keys)} trials ended", self.left])))
        table = Table(box=None, pad_edge=False)
        table.add_column("trial", overflow="fold")
        for title in ("status", "time", "images/s"):
            table.add_column(title, justify="right", no_wrap=True)
        place = min(map(keys.index, running), default=0)
        outputs = [(key, one.line) for key, one in running.items() if one.line][:_MOST_OUTPUTS]
        room = max(3, console.height - _OTHER_LINES - len(outputs))
        first = max(0, min(place - room // 2, len(keys) - room))
        for key in keys[first : first + room]:
            cells = self._cells(running.get(key), self._result(key))
            table.add_row(*map(Text, (printable(self._trials[key].title), *cells)))
        yield table
        if len(keys) > room:
            yield Text(f"({len(keys) - room} other trials)")
        for key, line in outputs:
            whose = f"{self._trials[key].title}: " if len(running) > 1 else ""
            yield Text(printable(whose + line), no_wrap=True, overflow="ellipsis", style="dim")

    def _cells(self, running: Any, result: TrialResult | None) -> tuple[str, str, str]:
        if running is not None:
            return "running", rough_duration(running.watch.elapsed_s()), ""
        if result is None:
            return "waiting", "", ""
        # The rate over the whole run is another metric.
        rate = result.figures.images_per_s
        return result.status, rough_duration(result.wall_s), plain(rate) if rate else ""
