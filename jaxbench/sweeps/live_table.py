"""A sweep on a terminal: a table of its trials, drawn again while they run."""

from typing import TYPE_CHECKING

from jaxbench.clock import Stopwatch, rough_duration
from jaxbench.metrics import plain
from jaxbench.records.schema import TrialResult
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

    Attributes:
      output: {key: the last line that this running trial has printed}.
    """

    def __init__(self):
        self._rows: dict[str, tuple[Trial, TrialResult | None]] = {}  # by the trials' keys
        self._running: dict[str, Stopwatch] = {}
        self.output: dict[str, str] = {}
        self._left = ""

    def add(self, trial: Trial, result: TrialResult | None = None) -> None:
        """Add a trial that does not run, with its result if it has one."""
        self._rows[trial.key] = (trial, result)
        self._running.pop(trial.key, None)
        self.output.pop(trial.key, None)

    def start(self, trial: Trial) -> None:
        self.add(trial)
        self._running[trial.key] = Stopwatch()

    def end(self, trial: Trial, result: TrialResult, left: str) -> None:
        """Note a trial's result, and in words how long the others will take."""
        self.add(trial, result)
        self._left = left

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        done = sum(result is not None for _, result in self._rows.values())
        title = ", ".join(filter(None, [f"{done} of {len(self._rows)} trials ended", self._left]))
        yield Text(title)
        table = Table(box=None, pad_edge=False)
        table.add_column("trial", overflow="fold")
        for title in ("status", "time", "images/s"):
            table.add_column(title, justify="right", no_wrap=True)
        keys = list(self._rows)
        place = min(map(keys.index, self._running), default=0)
        outputs = [*self.output.items()][:_MOST_OUTPUTS]
        room = max(3, console.height - _OTHER_LINES - len(outputs))
        first = max(0, min(place - room // 2, len(keys) - room))
        for key in keys[first : first + room]:
            trial, result = self._rows[key]
            table.add_row(*map(Text, (printable(trial.title), *self._cells(key, result))))
        yield table
        if len(keys) > room:
            yield Text(f"({len(keys) - room} other trials)")
        for key, line in outputs:
            whose = f"{self._rows[key][0].title}: " if len(self._running) > 1 else ""
            yield Text(printable(whose + line), no_wrap=True, overflow="ellipsis", style="dim")

    def _cells(self, key: str, result: TrialResult | None) -> tuple[str, str, str]:
        if key in self._running:
            return "running", rough_duration(self._running[key].elapsed_s()), ""
        if result is None:
            return "waiting", "", ""
        rate = result.figures.images_per_s or result.figures.images_per_s_whole_run
        return result.status, rough_duration(result.wall_s), plain(rate) if rate else ""
