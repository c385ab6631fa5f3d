"""Where a run's records go. A writer has `write(record)`, `flush()` and `close()`.

A record is a dict with a `kind`: compile, step, epoch or summary. Units are in its
keys; what is unknown is absent or None.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from jaxbench.distributed.signals import defer_signals


class Writer(Protocol):
    def write(self, record: Mapping[str, Any]) -> None: ...

    def flush(self) -> None:
        """Returns once all that was written is in its file, if it has one."""

    def close(self) -> None: ...


class Writers:
    """Hands every record to several writers; Ctrl-C waits until all of them have it."""

    def __init__(self, *writers: Writer):
        self._writers = list(writers)

    def add(self, writer: Writer) -> None:
        self._writers.append(writer)

    def write(self, record: Mapping[str, Any]) -> None:
        with defer_signals():
            for writer in self._writers:
                writer.write(record)

    def flush(self) -> None:
        with defer_signals():
            for writer in self._writers:
                writer.flush()

    def close(self) -> None:
        with defer_signals():
            for writer in self._writers:
                writer.close()
