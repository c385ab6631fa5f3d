"""The console: lines, and what is going on below them in a terminal or a notebook."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench import terminal
from jaxbench.clock import Stopwatch
from jaxbench.parallel import processes
from jaxbench.records.schema import Record, Summary
from jaxbench.records.writers import Writer
from jaxbench.records.writers.describe import SHORTEST_S, describe_record
from jaxbench.records.writers.rows import record_row
from jaxbench.tables.text import GrowingTable

# Without a terminal there is no bar: one line of progress each such interval.
_PLAIN_INTERVAL_S = 10.0
# A bar is drawn again after such an interval.
_REFRESH_S = 0.2


class Console(Writer):
    """A writer that also announces slow phases and shows progress inside an epoch.

    A run goes on where its lines cannot be written: their reader has ended (`| head`), the disk is
    full, the terminal is gone.
    """

    def __init__(self):
        self._table, self._kind = GrowingTable(), ""

    def say(self, line: str) -> None:
        """Print a line, wrapped to the width."""
        for part in terminal.wrap(terminal.printable(line)):
            self.print(part)

    def print(self, line: str) -> None:
        """Print a line that is not wrapped: a command, to be copied."""
        raise NotImplementedError

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        raise NotImplementedError

    def show(self, render: Callable[[], Any]) -> bool:
        """Show what `render` returns below the lines; return False where that is not possible.

        `render` is called again and again and returns something for rich to draw.
        """
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


def create_console(quiet: bool = False) -> Console:
    """Return the live console for a terminal or a notebook, the plain one otherwise.

    Any process but the first of a run gets one that prints nothing, as `quiet` asks for.
    """
    if quiet or not processes.is_primary():
        return PlainConsole(None)
    # rich draws in a notebook with ipywidgets.
    in_notebook = "IPython" in sys.modules and importlib.util.find_spec("ipywidgets")
    if sys.stdout.isatty() or in_notebook:
        console = RichConsole()
        if console.is_live:
            return console
    return PlainConsole(sys.stdout)


class PlainConsole(Console):
    """Print one line an event, flushed; none where there is no stream."""

    def __init__(self, stream):
        super().__init__()
        self._stream = stream
        self._since_progress, self._progress = Stopwatch(), ""

    def print(self, line: str) -> None:
        if self._stream is None:
            return
        with terminal.tolerated(self._stream):
            print(terminal.printable(line), file=self._stream, flush=True)

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        line = f"{title}  {done}/{total}  {status}".rstrip()
        if self._since_progress.elapsed_s() >= _PLAIN_INTERVAL_S and line != self._progress:
            self._since_progress, self._progress = Stopwatch(), line
            self.say(line)


class RichConsole(Console):
    """Print the same lines, with a spinner, a bar or a table below them."""

    def __init__(self, console: Any = None):
        """Use rich's console for standard output, or the given one."""
        super().__init__()
        from rich.console import Console

        self._console = console or Console(highlight=False)
        self._live: Any = None
        self._render: Callable[[], Any] = str
        self._since_refresh = Stopwatch()

    @property
    def is_live(self) -> bool:
        """Whether rich can draw again what it has drawn."""
        console = self._console
        return console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)

    def print(self, line: str) -> None:
        from rich.text import Text

        with terminal.tolerated(sys.stdout):
            if self._console.is_jupyter:  # rich would make a block of HTML of each line
                print(terminal.printable(line), flush=True)
            else:
                self._console.print(Text(terminal.printable(line)), soft_wrap=True)

    @contextlib.contextmanager
    def _announced(self, line: str) -> Iterator[None]:
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("dots", Text(terminal.printable(line)))
        self.show(lambda: spinner, at_once=True)
        try:
            yield
        finally:
            if self._console.is_jupyter:  # each new one would be one more output of the cell
                self.show(str, at_once=True)
            else:
                self.close()

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        self.show(lambda: _draw_bar(title, done, total, status))

    def show(self, render: Callable[[], Any], at_once: bool = False) -> bool:
        self._render = render
        in_notebook = self._console.is_jupyter
        if self._live is None:
            at_once = True
            from rich.live import Live

            self._live = Live(
                get_renderable=lambda: self._render(),
                console=self._console,
                transient=True,
                refresh_per_second=1 / _REFRESH_S,
                # In a notebook a thread that draws would take lines that are printed meanwhile.
                auto_refresh=not in_notebook,
                redirect_stdout=not in_notebook,
                redirect_stderr=not in_notebook,
            )
            self._live.start()
        if in_notebook and (at_once or self._since_refresh.elapsed_s() >= _REFRESH_S):
            self._since_refresh = Stopwatch()
            self._live.refresh()
        return True

    def close(self) -> None:
        """Remove what is below the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _draw_bar(title: str, done: int, total: int, status: str) -> Any:
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
