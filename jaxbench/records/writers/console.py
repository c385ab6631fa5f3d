"""The console: a live bar in a terminal, plain lines in a log file."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from jaxbench.clock import Stopwatch
from jaxbench.distributed import coordination
from jaxbench.records.schema.base import Record
from jaxbench.records.writers.describe import describe_record

# Without a terminal there is no bar: one line of progress each such interval.
_PLAIN_INTERVAL_S = 10.0


class Console(Protocol):
    """A writer that also announces slow phases and shows progress inside an epoch."""

    def say(self, line: str) -> None: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager: ...

    def progress(self, title: str, done: int, total: int, status: str) -> None: ...

    def write(self, record: Record) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def create_console(stream=None) -> Console:
    """Return the live console for a terminal, the plain one otherwise.

    Any process but the first of a run gets one that prints nothing.
    """
    if not coordination.is_primary():
        return PlainConsole(None)
    stream = stream or sys.stdout
    return RichConsole() if stream.isatty() else PlainConsole(stream)


class PlainConsole:
    """Print one line an event, flushed; none where there is no stream."""

    def __init__(self, stream):
        self._stream = stream
        self._since_progress = Stopwatch()

    def say(self, line: str) -> None:
        if self._stream is None:
            return
        # A reader that has ended (`| head`) does not end the run.
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._stream, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        self.say(f"{name} ...")
        yield
        self.say(f"{name}: {watch.elapsed_s():.1f} s")

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        if self._since_progress.elapsed_s() >= _PLAIN_INTERVAL_S:
            self._since_progress = Stopwatch()
            self.say(f"{title}  {done}/{total}  {status}")

    def write(self, record: Record) -> None:
        for line in describe_record(record):
            self.say(line)

    def flush(self) -> None:
        """Do nothing: every line is printed at once."""

    def close(self) -> None:
        pass


class RichConsole:
    """Print the same lines, with a spinner or a bar below them until a phase is done."""

    def __init__(self):
        from rich.console import Console

        self._console = Console(highlight=False)
        self._bar = None

    def say(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(line), soft_wrap=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        self._drop_bar()
        with self._console.status(f"{name} ..."):
            yield
        self.say(f"{name}: {watch.elapsed_s():.1f} s")

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed}/{task.total}  {task.fields[status]}"),
                console=self._console,
                transient=True,
            )
            self._bar.add_task(title, total=total, status=status)
            self._bar.start()
        [task] = self._bar.tasks
        self._bar.update(task.id, description=title, completed=done, total=total, status=status)

    def _drop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def write(self, record: Record) -> None:
        for line in describe_record(record):
            self.say(line)

    def flush(self) -> None:
        """Do nothing: every line is printed at once."""

    def close(self) -> None:
        self._drop_bar()
