"""Where a run's records go."""

from jaxbench.parallel.signals import defer_signals
from jaxbench.schema import Record


class Writer:
    """The interface of a writer; one without files need not flush or close."""

    def write(self, record: Record) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Return once all that was written is in its file, if it has one."""

    def close(self) -> None:
        """End the writer; nothing is written later."""


class Writers(Writer):
    """Hand every record to several writers; Ctrl-C waits until all of them have it."""

    def __init__(self, *writers: Writer):
        self._writers = list(writers)

    def add(self, writer: Writer) -> None:
        self._writers.append(writer)

    def write(self, record: Record) -> None:
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
