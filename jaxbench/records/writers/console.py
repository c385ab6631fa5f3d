"""The console: lines, and what is going on below them in a terminal."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from jaxbench import terminal
from jaxbench.clock import Stopwatch
from jaxbench.parallel import processes
from jaxbench.records.writers import Writer
from jaxbench.records.writers.describe import SHORTEST_S, describe_record
from jaxbench.records.writers.rows import record_row
from jaxbench.schema import Record, Summary
from jaxbench.tables.text import GrowingTable

if TYPE_CHECKING:  # imported late: most runs have no terminal
    import rich.console
    import rich.live
    from rich.console import RenderableType

# Without a terminal there is no bar: one line of progress each such interval.
_PLAIN_INTERVAL_S = 10.0


class Console(Writer):
    """Print lines, flushed: records, slow phases, and progress now and then.

    A run goes on if its lines cannot be written: their reader has ended (`| head`), the disk is
    full, the terminal is gone. Without a stream nothing is printed.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._table, self._kind = GrowingTable(), ""
        self._since_progress, self._progress = Stopwatch(), ""
        self._warnings: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line, wrapped to the width; a warning only once."""
        if line.startswith("warning: "):
            if line in self._warnings:
                return
            self._warnings.add(line)
        for part in terminal.wrap(terminal.printable(line)):
            self.print(part)

    def print(self, line: str) -> None:
        """Print a line that is not wrapped: a command, to be copied."""
        if self._stream is not None:
            with terminal.tolerated(self._stream):
                line = terminal.coloured(terminal.printable(line), self._stream)
                print(line, file=self._stream, flush=True)

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        line = f"{title}  {done}/{total}  {status}".rstrip()
        if self._since_progress.elapsed_s() >= _PLAIN_INTERVAL_S and line != self._progress:
            self._since_progress, self._progress = Stopwatch(), line
            self.say(line)

    def show(self, render: Callable[[], "RenderableType"]) -> bool:
        """Draw what `render` returns below the lines, repeatedly; return False if it cannot."""
        return False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        with self._announced(f"{name} ..."):
            yield
        if watch.elapsed_s() >= SHORTEST_S:
            self.say(f"{name}: {watch.elapsed_s():.1f} s")

    def _announced(self, line: str) -> contextlib.AbstractContextManager:
        self.say(line)
        return contextlib.nullcontext()

    def write(self, record: Record) -> None:
        row = record_row(record)
        if (row or isinstance(record, Summary)) and record.kind != self._kind:
            self._kind, self._table = record.kind, GrowingTable()
        for line in (*self._table.lines(row), *describe_record(record)):
            self.say(line)


class RichConsole(Console):
    """Print the same lines on a terminal, with a spinner or a bar below them."""

    def __init__(self, console: "rich.console.Console | None" = None):
        """Use rich's console for standard output, or the given one."""
        super().__init__(sys.stdout)
        from rich.console import Console

        self._console = console or Console(highlight=False)
        self._live: rich.live.Live | None = None
        self._render: Callable[[], RenderableType] = str

    def print(self, line: str) -> None:
        from rich.text import Text

        line = terminal.coloured(terminal.printable(line), self._console.file)
        with terminal.tolerated(sys.stdout):
            self._console.print(Text.from_ansi(line), soft_wrap=True)

    @contextlib.contextmanager
    def _announced(self, line: str) -> Iterator[None]:
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("dots", Text(terminal.printable(line)))
        self.show(lambda: spinner)
        try:
            yield
        finally:
            self.close()

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        self.show(lambda: _draw_bar(title, done, total, status))

    def show(self, render: Callable[[], "RenderableType"]) -> bool:
        from rich.live import Live

        self._render = render
        if self._live is None:
            self._live = Live(
                get_renderable=lambda: self._render(),
                console=self._console,
                transient=True,
                refresh_per_second=5,
            )
            self._live.start()
        return True

    def close(self) -> None:
        """Remove what is below the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def create_console(quiet: bool = False) -> Console:
    """Return the live console for a terminal, the plain one otherwise.

    Any process but the first of a run gets one that prints nothing, as `quiet` asks for.
    """
    if quiet or not processes.is_primary():
        return Console(None)
    is_live = sys.stdout.isatty() and os.environ.get("TERM") not in terminal.PLAIN_TERMINALS
    return RichConsole() if is_live else Console(sys.stdout)


def _draw_bar(title: str, done: int, total: int, status: str) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    # Not to the last column, where a terminal that prints ^C would begin another line.
    bar = Table.grid(padding=(0, 1))
    bar.width = terminal.width() - 4
    bar.add_column(overflow="fold")
    bar.add_column(ratio=1)
    bar.add_column(overflow="fold")
    counts = terminal.printable(f"{done}/{total}  {status}")
    bar.add_row(Text(terminal.printable(title)), ProgressBar(total, done), Text(counts))
    return bar
