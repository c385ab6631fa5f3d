"""A sweep on a terminal: a table of its trials, drawn again while they run."""

from typing import Any

from jaxbench.clock import Stopwatch, duration
from jaxbench.records.schema.sweep import TrialResult
from jaxbench.sweeps.grid import Trial
from jaxbench.terminal import printable

# Lines that a table needs beside its rows: title, titles of the columns, rule, last output.
_OTHER_LINES = 6


class LiveTable:
    """The trials with their status, time and images/s.

    Attributes:
      output: the last line that the running trial has printed.
    """

    def __init__(self):
        self._rows: dict[str, tuple[Trial, TrialResult | None]] = {}  # by the trials' keys
        self._running: str | None = None
        self._watch = Stopwatch()
        self.output = self._left = ""

    def add(self, trial: Trial, result: TrialResult | None = None) -> None:
        """Add a trial, with its result if it has one."""
        self._rows[trial.key] = (trial, result)

    def start(self, trial: Trial) -> None:
        self.add(trial)
        self._running, self._watch, self.output = trial.key, Stopwatch(), ""

    def end(self, trial: Trial, result: TrialResult, left: str) -> None:
        """Note a trial's result, and in words how long the others will take."""
        self.add(trial, result)
        self._running, self._left = None, left

    def __rich_console__(self, console: Any, options: Any) -> Any:
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
        place = keys.index(self._running) if self._running else 0
        room = max(3, console.height - _OTHER_LINES)
        first = max(0, min(place - room // 2, len(keys) - room))
        for key in keys[first : first + room]:
            trial, result = self._rows[key]
            table.add_row(*map(Text, (printable(trial.title), *self._cells(key, result))))
        yield table
        if len(keys) > room:
            yield Text(f"({len(keys) - room} other trials)")
        if self._running:
            yield Text(printable(self.output), no_wrap=True, overflow="ellipsis", style="dim")

    def _cells(self, key: str, result: TrialResult | None) -> tuple[str, str, str]:
        if key == self._running:
            return "running", duration(self._watch.elapsed_s()), ""
        if result is None:
            return "waiting", "", ""
        figures = result.figures
        rate = figures.images_per_s or figures.images_per_s_whole_run
        return result.status, duration(result.wall_s), f"{rate:,.1f}" if rate else ""
