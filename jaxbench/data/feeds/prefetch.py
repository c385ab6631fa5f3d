"""Grain's threads that prepare batches. Grain is imported late: only the streamed feed needs it."""

from collections.abc import Callable
from typing import Any

from jaxbench.hardware.system import available_cores


def threads_per_process(num_threads: int, num_processes: int) -> int:
    """Return `num_threads`, or for 0 as many as give each core one thread."""
    return num_threads or -(-available_cores() // max(1, num_processes))


def prepare_in_threads(
    prepare: Callable[[int], Any], start: int, stop: int, *, num_threads: int, buffer: int = 1
) -> Any:
    """Return a grain data set of prepare(start) ... prepare(stop - 1), in this order.

    Args:
      prepare: called by several threads at once.
      start, stop: the numbers it is called with.
      num_threads: how many call it.
      buffer: how many results are kept ready, one for each thread at least.
    """
    import grain

    options = grain.ReadOptions(
        num_threads=num_threads, prefetch_buffer_size=max(num_threads, buffer)
    )
    return grain.MapDataset.range(start, stop).map(prepare).to_iter_dataset(options)
